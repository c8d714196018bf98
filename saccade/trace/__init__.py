"""The record of where attention went: saved, loaded, drawn."""
