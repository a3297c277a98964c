"""Gradient synchronisation: exchange buckets on a communication thread while backward computes others."""
