"""Planning on several offers (GPU kinds, actor sizes, pools and markets), with a lower bound."""
