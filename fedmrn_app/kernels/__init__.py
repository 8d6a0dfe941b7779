"""Operations on long vectors: loops that Numba or Triton compiles, each with a plain form that gives the same bits."""
