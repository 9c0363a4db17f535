"""The rules of the operators, one file for each family."""
