"""Operations on long vectors: loops that Numba or Triton compiles; tests compare each with a plain form."""
