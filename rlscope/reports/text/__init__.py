"""The sentences that all formats share; nothing is printed or drawn here."""
