"""Both ends of HTTP: servers, clients, applications and dashboards."""
