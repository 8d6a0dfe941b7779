"""Secure aggregation: the server learns the sum of the clients' integers and nothing else about one client.

The protocol is that of Bonawitz et al. 2017, "Practical Secure Aggregation for Privacy-Preserving Machine Learning",
Figure 4 (without signatures and the consistency check), on the sparse graph of Bell et al. 2020, "Secure Single-Server
Aggregation with (Poly)Logarithmic Overhead", Algorithm 2.
"""
