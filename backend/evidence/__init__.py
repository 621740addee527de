"""The files that prove a report: one self-contained folder, with a hash of each file."""
