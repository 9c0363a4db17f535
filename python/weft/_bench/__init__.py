"""What python -m weft bench and demo do."""
