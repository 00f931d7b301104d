package documents

import "github.com/fairlead-proxy/fairlead/internal/latest"

// Wake wakes Run as a new table does, without a claim that something must be published.
func (s *Sources[S, L]) Wake() { latest.Wake(s.changed) }
