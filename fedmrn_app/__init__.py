"""FedMRN: federated learning whose clients upload a seed and about one bit per weight, on Flower."""
