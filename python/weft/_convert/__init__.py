"""What weft.convert and weft.report do."""
