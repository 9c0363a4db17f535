"""What weft.convert, weft.report and weft.pack do."""
