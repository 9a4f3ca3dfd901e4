"""What each page shows, made from plain values; pure, and tested without a browser."""
