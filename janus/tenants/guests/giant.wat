;; Attack: begins with 4 GiB of memory.
(module (memory 65536) (func (export "_start")))
