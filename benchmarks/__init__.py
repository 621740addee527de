"""How fast, and in how much memory; run by hand, see the README."""
