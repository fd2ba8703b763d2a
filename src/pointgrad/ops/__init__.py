"""The operators, one package per family. `README.md` explains how a family is built."""
