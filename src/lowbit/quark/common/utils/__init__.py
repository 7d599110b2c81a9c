"""What Quark shares between its parts."""
