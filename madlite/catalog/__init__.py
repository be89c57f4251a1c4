"""Tags in, cards out: models.json, scripts/*/models.json, get_models_json.py, plugins' cards and madlite's own."""
