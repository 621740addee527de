"""Keys, signatures, and who is trusted."""
