"""What a grant is, and how the scheduler signs one."""
