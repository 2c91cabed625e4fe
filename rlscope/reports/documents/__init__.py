"""What the commands print for programs: one JSON document a command, and the reports of alert rules."""
