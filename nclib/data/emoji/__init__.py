"""The bundled set: scenes of emoji drawings."""
