"""The catalog: what models, profiles, tenants, quotas and prices mean, by revision."""
