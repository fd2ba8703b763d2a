"""Damaged and malicious files for every reader."""
