"""What people see: tables and progress, by rich. Nothing here decides or measures anything."""
