;; Attack: begins with four billion table elements.
(module (table 4294967295 funcref) (func (export "_start")))
