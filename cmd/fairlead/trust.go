package main

import (
	"crypto/tls"
	"errors"

	"k8s.io/apimachinery/pkg/types"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/fairlead-proxy/fairlead/certs"
	"github.com/fairlead-proxy/fairlead/certs/trust"
	"github.com/fairlead-proxy/fairlead/cmd/cli"
)

// authConfigMap names the ConfigMap by which a cluster says which CAs its extension servers trust.
func authConfigMap() types.NamespacedName {
	return types.NamespacedName{Namespace: "kube-system", Name: "extension-apiserver-authentication"}
}

// makeTrust makes the CAs by which backends and the local apiserver are verified, and then our own
// certificates and the CAs of clients, which follow files of the parts before them, too.
func (s *server) makeTrust(files []certs.File) (err error) {
	s.trust = trust.New(trust.Config{
		Tables: s.registry, Watch: s.registry.Watch, Renewed: func(apiService string) { s.prober.Renew(apiService) }, Logger: s.log, Metrics: s.metrics,
		ClientCertificate: func(r *tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return s.certs.ProxyClient().GetClientCertificate(r)
		},
	})
	if s.kube != nil {
		s.kube.trust = s.trust
	}
	version, err1 := cliflag.TLSVersion(s.o.minTLSVersion)
	suites, err2 := cliflag.TLSCipherSuites(s.o.cipherSuites)
	if err := errors.Join(err1, err2); err != nil {
		return cli.Usage(err)
	}
	c := s.o.Certs
	c.SNI, c.MinVersion, c.CipherSuites, c.HTTP1 = s.o.SNI(), version, suites, !s.o.http2
	c.ConfigMap, c.Files, c.Watch, c.Logger, c.Metrics = authConfigMap(), append(s.kube.files(), files...), s.registry.Watch, s.log, s.metrics
	s.certs, err = certs.New(c)
	if err != nil {
		return cli.Usage(err)
	}
	s.loops["certificates"], s.loops["backend trust"] = s.certs.Run, s.trust.Run
	return nil
}
