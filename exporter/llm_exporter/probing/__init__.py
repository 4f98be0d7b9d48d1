"""Probing on the command line: the ladder of lengths, the fit, the comparison of two servers."""
