"""The command `quintal`: a thin face over `quintal.client`."""
