"""Speed, beside peers and the machine's limit in the same run."""
