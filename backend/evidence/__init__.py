"""The files that prove a report: one folder, complete in itself, hashed file by file."""
