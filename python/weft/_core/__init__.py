"""What every part of the client rests on: the C library, the rules of operators, their shapes, arguments and settings."""
