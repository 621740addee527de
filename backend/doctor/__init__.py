"""What this installation and its services lack, found before anything is started."""
