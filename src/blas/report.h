/* report.h: what `tessera run` hears of the processes it started. */
#ifndef TESSERA_BLAS_REPORT_H
#define TESSERA_BLAS_REPORT_H

/* Called before the first product of the process. */
void blas_report_product(void);

#endif
