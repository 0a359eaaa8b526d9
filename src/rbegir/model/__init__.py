"""Two-tower text models whose embeddings are sums of binary vectors."""
