"""One a reproducible result: system + task + budget + the published number it stands beside."""
