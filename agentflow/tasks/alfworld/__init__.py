"""ALFWorld: households in text (Shridhar et al. 2021, arXiv 2010.03768)."""
