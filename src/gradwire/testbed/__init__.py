"""Real Linux network namespaces with rate limits, and commands run in them; torch is not needed here."""
