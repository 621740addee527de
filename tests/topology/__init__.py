"""Topicproof on a cluster as a company has it."""
