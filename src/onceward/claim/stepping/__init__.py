"""Steps: several effects under one claim, each recorded before the next begins."""
