"""Take over pods that HAMi started."""
