"""The page and its small server: draws readings and traces, holds no model code."""
