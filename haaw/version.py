"""The version of HAAW; a leaf."""

VERSION = "0.1.0"
