"""Kills processes of ours at random moments: `python -m tests.kills`."""
