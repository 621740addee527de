"""Faults: named places where something goes wrong on purpose. One file per family."""
