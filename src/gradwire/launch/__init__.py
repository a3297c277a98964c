"""How processes start and find each other: torchrun's variables, or processes of this machine."""
