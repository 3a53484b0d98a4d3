#pragma once
#define CUDART_INF_F __builtin_inff()
#define CUDART_NAN __builtin_nan("")
