"""What several pages are made of: amounts, moments, owners, cells, charts. Pure."""
