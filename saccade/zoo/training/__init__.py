"""The one training loop: resume, progress, clipping, schedules, several processes."""
